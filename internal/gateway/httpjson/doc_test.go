package httpjson_test

import (
	"errors"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/go-viper/mapstructure/v2"
	"go.yaml.in/yaml/v3"

	"pollux/internal/gateway/httpjson"
	"pollux/internal/secret"
)

const page = "../../../docs/gateways/httpjson.md"

func readPage(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestDocumentedGatewaysAreComplete builds every gateway of the documentation.
func TestDocumentedGatewaysAreComplete(t *testing.T) {
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(readPage(t), -1)
	if len(blocks) < 5 {
		t.Fatalf("%d examples", len(blocks))
	}
	for _, b := range blocks {
		var doc struct {
			Gateways map[string]map[string]any
		}
		if err := yaml.Unmarshal([]byte(b[1]), &doc); err != nil {
			t.Fatal(err)
		}
		for name, section := range doc.Gateways {
			var cfg httpjson.Config
			d, err := mapstructure.NewDecoder(&mapstructure.DecoderConfig{
				Result: &cfg, TagName: "koanf", ErrorUnused: true,
				DecodeHook: mapstructure.ComposeDecodeHookFunc(mapstructure.StringToTimeDurationHookFunc(), named),
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := d.Decode(section["httpjson"]); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if section["adapter"] != "httpjson" {
				t.Errorf("%s has the adapter %v", name, section["adapter"])
			}
			adapter(t, cfg)
		}
	}
}

// named is a secret for every name of one.
func named(from, to reflect.Type, v any) (any, error) {
	if to != reflect.TypeFor[secret.Secret]() || from.Kind() != reflect.String {
		return v, nil
	}
	if s := v.(string); !strings.HasPrefix(s, "file:") && !strings.HasPrefix(s, "env:") {
		return nil, errors.New("a secret is written out")
	}
	return secret.New("a-secret"), nil
}

// TestEveryKeyIsDocumented looks for each key, with its section where it has one.
func TestEveryKeyIsDocumented(t *testing.T) {
	text := readPage(t)
	for _, key := range keys(reflect.TypeFor[httpjson.Config](), "") {
		if !strings.Contains(text, "`"+key+"`") {
			t.Errorf("%s says nothing about `%s`", page, key)
		}
	}
}

func keys(typ reflect.Type, prefix string) []string {
	var all []string
	for f := range typ.Fields() {
		switch tag := f.Tag.Get("koanf"); {
		case tag == "-":
		case tag == ",squash":
			all = append(all, keys(f.Type, prefix)...)
		case f.Type.Kind() == reflect.Struct && f.Type != reflect.TypeFor[secret.Secret]():
			all = append(all, keys(f.Type, prefix+tag+".")...)
		default:
			all = append(all, prefix+tag)
		}
	}
	return all
}
