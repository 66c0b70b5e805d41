"""`finegrain run`: one command in a slot, or in every slot of a gang."""
