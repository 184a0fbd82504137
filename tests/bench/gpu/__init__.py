"""`make gpu`: plans of PyTorch models on a GPU, predicted and measured, in one table within some minutes."""
