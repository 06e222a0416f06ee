"""Code shared by the strategies of plain torch, and usable by plug-ins; imports torch."""
