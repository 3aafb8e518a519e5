package certificate

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"strings"
)

// Hint says what to do about a connection to a server that failed for a certificate, the server's or ours; it is empty where err is about something else. Section is the part of
// the configuration that has the files of this connection: database or nats.
func Hint(err error, section string) string {
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok {
		if invalid.Reason == x509.Expired {
			return "the server's certificate, or that of its authority, has ended or does not count yet: renew it and have the server read it; is this machine's clock right?"
		}
		return "the server's certificate, or that of its authority, is not good for this: issue it anew"
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return "the server's certificate is of an authority that is not in " + section + ".ca_file, or without that file not among the system's"
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		if section == "nats" {
			return "the server's certificate is for another name than nats.urls has: write the name that it has there, or in nats.server_name"
		}
		return "the server's certificate is for another name than " + section + ".url has: write the name that it has there"
	}
	if alert, ok := errors.AsType[*net.OpError](err); ok && alert.Op == "remote error" && strings.Contains(alert.Error(), "certificate") {
		return "the server does not take our certificate: is " + section + ".cert_file there, has it ended, and is it of an authority that the server trusts?"
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return "there is no TLS at that port, where " + section + " asks for it"
	}
	return ""
}
