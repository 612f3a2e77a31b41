"""One client's training: its phases, the user's network, random keys, batches, a trial of the model, messages."""
