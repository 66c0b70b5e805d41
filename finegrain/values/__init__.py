"""Values that several programs exchange; each has one class for all of them."""
