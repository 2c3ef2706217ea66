"""What ``trainhooks report`` draws with: the page, its data, and curves in the terminal."""
