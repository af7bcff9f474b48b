"""The words and values everyone shares; nothing here touches a device."""
