"""Parts of a data set as batches, and how several ranks share them."""
