"""A member and its leader: facts out, decisions in, and the orders that follow from them."""
