"""What a user can ask about searches: the documents that commands, REST API, notebook and pages show."""
