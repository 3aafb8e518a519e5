package dialect

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"time"
)

// CertificateURL is where PayPal's notifications say that their certificate is.
const CertificateURL = "https://api.sandbox.paypal.com/v1/notifications/certs/CERT-360caa42-fca2a594-simulator"

// certified is whose PayPal's certificate for test notifications is.
const certified = "messageverificationcerts.sandbox.paypal.com"

// Authority has a key for PayPal's notifications, its certificate, and who vouches for it. It is safe for concurrent use.
type Authority struct {
	Chain []byte         // PEM, the key's own first
	Roots *x509.CertPool // who vouches for it

	key, stranger *rsa.PrivateKey
}

// NewAuthority makes one that is good for a day. It takes some tenths of a second.
func NewAuthority() (*Authority, error) {
	root, key, stranger := newKey(), newKey(), newKey()
	now := time.Now()
	top := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "the authority of a simulator"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(25 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	own := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: certified}, DNSNames: []string{certified}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, BasicConstraintsValid: true,
	}
	topDER, err := x509.CreateCertificate(rand.Reader, top, top, &root.PublicKey, root)
	if err != nil {
		return nil, fmt.Errorf("making an authority: %w", err)
	}
	ownDER, err := x509.CreateCertificate(rand.Reader, own, top, &key.PublicKey, root)
	if err != nil {
		return nil, fmt.Errorf("making a certificate: %w", err)
	}
	parsed, err := x509.ParseCertificate(topDER)
	if err != nil {
		return nil, fmt.Errorf("reading an authority: %w", err)
	}
	a := &Authority{Roots: x509.NewCertPool(), key: key, stranger: stranger}
	a.Roots.AddCert(parsed)
	a.Chain = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ownDER})
	return a, nil
}

// Fetch is what is at an address: the certificate at its own, and nothing at every other.
func (a *Authority) Fetch(_ context.Context, url string) (status int, body []byte, err error) {
	if url != CertificateURL {
		return http.StatusNotFound, nil, nil
	}
	return http.StatusOK, a.Chain, nil
}

func newKey() *rsa.PrivateKey {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err) // it has no other error than an impossible size
	}
	return key
}
