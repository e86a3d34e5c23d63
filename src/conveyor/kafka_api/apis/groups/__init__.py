"""APIs for consumer groups: membership in both protocols, committed offsets, their description and deletion."""
