"""Bring texts of different lengths: two writers, and a small transformer that learns which letter follows.

To run it: python examples/bring_texts.py
"""

import counterpoise as cp

NORTH = ["the rain falls on the hill", "the hill is green", "rain and wind on the sea"] * 10
SOUTH = ["sun on the sand", "the sea is warm and blue", "sand and sea"] * 10


def tokens(texts: list[str]) -> tuple[dict, object]:
    rows = [list(text.encode()) for text in texts]
    inputs = cp.padded([row[:-1] for row in rows], token=0, length=30)
    return inputs, cp.padded([row[1:] for row in rows], token=-100, length=30)["input_ids"]


def main(rounds: int = 5) -> cp.Run:
    federation = cp.Federation.from_datasets({"north": tokens(NORTH), "south": tokens(SOUTH)}, test=tokens(["the sea"]))
    local = cp.Local(batch=5, optimizer=cp.adam(0.005))
    return cp.simulate("fedavg", federation, model="transformer", rounds=rounds, local=local)


if __name__ == "__main__":
    print(f"letters predicted in a new text: {main().accuracy:.1%}")
