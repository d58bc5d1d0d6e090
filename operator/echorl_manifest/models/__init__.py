"""The manifest's models, by the part of ``spec``. What holds between fields stands in ``echorl_manifest.rules``."""
