"""What lasts: the database with its tables, and the folders of files."""
