"""What is wrong, in words, and who is told."""
