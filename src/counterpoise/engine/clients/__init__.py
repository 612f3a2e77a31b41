"""One client's training: its phases, the user's network, random keys, batches, a first inspection, and the messages of a round."""
