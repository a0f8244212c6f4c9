"""Who calls and what they may: tokens, other issuers, certificate names; TLS."""
