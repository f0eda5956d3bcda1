"""The losses of this package inside training engines that others keep: TRL and verl.

Neither is installed by `requirements.txt`: they are heavy and move fast. Each file here
names the versions that it was tested with, and refuses others.
"""
