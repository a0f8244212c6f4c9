"""What a search would take at a site: pure, nothing is submitted."""
