"""What commands print: tables, maps, explanations."""
