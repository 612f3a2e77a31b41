"""Fine-tune a transformer with low-rank adapters: clients train and send the adapters and the head alone.

To run it: python examples/fine_tune_lora.py
"""

from torch import nn

import counterpoise as cp

federation = cp.load("digits", partition=cp.dirichlet(0.5, clients=8), seed=0)
layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)  # in its place, your pretrained one
reader = nn.Sequential(nn.Flatten(1, 2), nn.Linear(8, 64), encoder, nn.Flatten(), nn.Linear(512, 10))

model = cp.models.with_lora(reader, rank=4, where="2.*.linear?", whole="4")
run = cp.simulate("fedavg", federation, model=model, rounds=5)
sent, all_of_it = (sum(p.numel() for p in model.parameters() if p.requires_grad or whole) for whole in (False, True))
print(f"accuracy {run.accuracy:.2f}; {sent:,} of {all_of_it:,} parameters are trained and sent")
