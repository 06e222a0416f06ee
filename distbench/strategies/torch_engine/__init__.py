"""What the strategies of plain torch share, and what plug-ins may build on; imports torch."""
