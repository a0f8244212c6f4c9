"""What users do with searches: one interface, in process and through a REST API."""
