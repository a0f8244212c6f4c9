"""Who calls and what they may: tokens, other issuers; TLS."""
