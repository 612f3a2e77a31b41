"""What is shown while runs go on, in a terminal and in a notebook."""
