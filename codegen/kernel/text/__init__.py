"""What becomes text: names that are safe, and marks for the user's lines."""
