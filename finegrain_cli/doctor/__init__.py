"""What `finegrain doctor` looks at, one module per question; all of them only look."""
