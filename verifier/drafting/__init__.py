"""What the draft method knows of drafters, and of each text that one of them mirrors."""
