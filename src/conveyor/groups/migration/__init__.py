"""Groups whose members move from one protocol to the other.

Here: all code that needs both protocols. The rooms of the two protocols do not import each other.
"""
