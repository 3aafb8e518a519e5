package app

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"pollux/internal/broker"
	"pollux/internal/config"
	"pollux/internal/doctor"
	"pollux/internal/secret"
)

// lookAtFiles looks at the files that a configuration names: who may read them, and whether a service would take them, and when what is in them ends. No secret is kept.
func lookAtFiles(named []config.NamedFile) []doctor.File {
	var all []doctor.File
	for _, n := range named {
		all = append(all, lookAt(n))
	}
	return all
}

// openToOthers are the permissions that a secret's file should not give: to everybody any, to its group to write. That its group may read it is how orchestrators hand secrets to
// a user that does not own them.
const openToOthers fs.FileMode = 0o027

func lookAt(n config.NamedFile) doctor.File {
	f := doctor.File{Key: n.Key, Path: n.Path, Kind: fileKind(n.Kind)}
	st, err := os.Stat(n.Path)
	if errors.Is(err, fs.ErrNotExist) || n.Unused && !readable(n.Path) {
		f.Missing = true
		return f
	}
	if err == nil {
		f.Mode = uint32(st.Mode().Perm())
		f.Others = st.Mode().Perm()&openToOthers != 0
		f.Folder, _ = secret.Swappable(n.Path) // where we may not look, others may hardly write
	}
	if err == nil && n.Kind == config.SecretFile {
		f.Useless, err = n.Refused()
	}
	if err == nil && n.Kind == config.CredentialsFile {
		f.Expires, err = broker.CredentialsEnd(n.Path)
	}
	if err == nil && n.Kind == config.CertificateFile {
		f.Certs = certificatesIn(n)
	}
	if err != nil {
		f.Err = err.Error()
	}
	return f
}

func readable(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	f.Close()
	return true
}

func fileKind(k config.FileKind) doctor.FileKind {
	switch k {
	case config.CertificateFile:
		return doctor.CertificateFile
	case config.CredentialsFile:
		return doctor.CredentialsFile
	}
	return doctor.SecretFile
}

// certificatesIn reads the certificates of a file in PEM.
func certificatesIn(n config.NamedFile) []doctor.Certificate {
	unread := func(why string) []doctor.Certificate {
		return []doctor.Certificate{{Where: n.Path, Err: n.Key + ": " + why}}
	}
	rest, err := os.ReadFile(n.Path)
	if err != nil {
		return unread(err.Error())
	}
	var all []doctor.Certificate
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return unread(fmt.Sprintf("certificate %d: %s", len(all)+1, err))
		}
		all = append(all, doctor.Certificate{Where: n.Path, Subject: cert.Subject.String(), NotAfter: cert.NotAfter})
	}
	if len(all) == 0 {
		return unread("no certificate is in it")
	}
	return all
}
