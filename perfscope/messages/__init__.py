"""The English for codes and figures. Nothing reads these sentences back."""
