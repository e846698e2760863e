"""Plans: which responses an agent samples, and how."""
