"""What runs on the far side: supervisor, zygote, init and interpreter.

These files use the standard library only. They are bound read-only into the sandbox's private root
and imported there under the name `guest`, so they can see nothing else of EnvTorch.
"""
