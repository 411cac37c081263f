"""What a sample of topology says, as plain facts, derived from the fragment that an importer made of it."""
