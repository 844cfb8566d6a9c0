"""Each trainer drives its adapter, installed for real, in a virtual environment of its own."""
