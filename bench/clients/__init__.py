"""Each framework's own client, measured from where its users sit: `python -m bench.clients.NAME '{...}'`"""
