"""From raw tables to prepared data: split, fit an encoder on the training rows, encode, shuffle, store."""
