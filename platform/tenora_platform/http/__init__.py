"""What all endpoints share: strict bodies, policies, error rendering, clients that leave."""
