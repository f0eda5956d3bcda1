"""How a run is kept, however it ends. `train` opens this room by one door, `kept`.

ending      what ends a run, what is handed back then: the door
checkpoint  one file to go on from
identity    by which task, reward and frozen weights are known again
histories   CSV and JSON lines
files       how all of them are written
"""
