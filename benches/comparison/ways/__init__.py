"""The job as a user of each library writes it: two teachers label images, a student takes batches of them."""
