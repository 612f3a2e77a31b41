"""What a round is: the loop, the server and what it admits, what is kept for each client, and evaluation."""
