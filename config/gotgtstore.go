package config

var gotgtStore = storeType{
	name: StoreGOTGT, read: (*decoder).gotgtStore, noun: "file",
	place: func(s *Store) string {
		if s.GOTGT.Plugin != "file" {
			return "" // nobody but the plugin knows
		}
		return s.GOTGT.Path
	},
	unsized: func(*Store) string { return "size that the plugin says" },
	details: func(s *Store) []string {
		words := []string{"plugin " + s.GOTGT.Plugin}
		if s.GOTGT.Path != "" {
			words = append(words, s.GOTGT.Path)
		}
		return words
	},
}

// GOTGTStore holds the options of a store on a plugin of gotgt, besides its size.
type GOTGTStore struct {
	// Plugin is the name under which the plugin is registered.
	Plugin string

	// Path is what the plugin is told to open. It is exactly the text of the configuration,
	// except for the plugin "file": for that it is a path like FileStore.Path.
	Path string
}

func (d *decoder) gotgtStore(o *object, s *Store) {
	g := &GOTGTStore{}
	s.GOTGT = g
	if !set(o.takeWord("plugin"), &g.Plugin, "the name of a plugin", func(text string) (string, error) { return text, nil }) && !o.has("plugin") {
		d.errorf(s.Pos, "the gotgt store %q has no plugin: add one, such as plugin: file", s.Name)
	}
	o.text("path", &g.Path)
	switch {
	case g.Plugin != "file":
	case !o.has("path"):
		d.errorf(s.Pos, "the gotgt store %q has no path: add one, such as path: %s.img", s.Name, s.Name)
	default:
		g.Path = resolvePath(d.src.file, g.Path)
	}
	d.storeSize(o, s)
}
