package httpclient

import (
	"compress/flate"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"

	"pollux/internal/gateway"
)

// Kind is the kind of trouble with a call. The zero value is Other.
type Kind uint8

// The kinds. Those marked "ours" say nothing about the gateway.
const (
	Other       Kind = iota // nothing that is known
	DNS                     // the name has no address, or its servers do not answer
	Resolver                // ours: our own resolver cannot be reached
	Refused                 // the connection was refused
	Unreachable             // no way to the host
	Reset                   // closed or reset before an answer
	Timeout                 // connecting, the handshake, or the whole call took too long
	TLS                     // the handshake failed, or the certificate is not trusted
	CutBody                 // the answer broke off
	TooLarge                // the headers or the body, packed or unpacked, are above their cap
	Encoding                // compressed in a way that was not asked for, or badly
	Redirect                // a 3xx
	Protocol                // not HTTP
	Blocked                 // an address that no gateway has
	Cancelled               // ours: the caller's context ended
	Busy                    // ours: every place was taken for too long
	Local                   // ours: out of file descriptors, ports or memory, or without a network
	Unasked                 // ours: the request was not one that may be sent
)

var kindNames = [...]string{
	Other: "other", DNS: "dns", Resolver: "resolver", Refused: "refused", Unreachable: "unreachable", Reset: "reset", Timeout: "timeout",
	TLS: "tls", CutBody: "cut_body", TooLarge: "too_large", Encoding: "encoding", Redirect: "redirect", Protocol: "protocol",
	Blocked: "blocked", Cancelled: "cancelled", Busy: "busy", Local: "local", Unasked: "unasked",
}

var kindTexts = [...]string{
	Other: "the call failed", DNS: "the name cannot be resolved", Resolver: "our name server cannot be reached", Refused: "connection refused",
	Unreachable: "unreachable", Reset: "the connection was closed before an answer", Timeout: "no answer in time", TLS: "TLS failed",
	CutBody: "the answer broke off", TooLarge: "the answer is too large", Encoding: "the answer is not encoded as it was asked for",
	Redirect: "redirects are not followed", Protocol: "not HTTP", Blocked: "the address is refused", Cancelled: "cancelled by ourselves",
	Busy: "too many calls under way", Local: "this machine is short of something", Unasked: "not asked",
}

// String returns the kind as it is logged and used as a metric label.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return kindNames[Other]
}

// Class returns the class of an answer that never came, or came broken. An answer whose status is known may be of another one.
func (k Kind) Class() gateway.Class {
	switch k {
	case Resolver, Cancelled, Busy, Local, Unasked:
		return gateway.Local
	}
	return gateway.Transport
}

// Error is how a call failed. It names the host and never a path, a query, a header's value or a password; it wraps nothing, so
// nothing else can be got out of it.
type Error struct {
	Kind   Kind
	host   string
	detail string
}

// Error returns the host, what happened and, where it helps, why.
func (e *Error) Error() string {
	text := kindTexts[Other]
	if int(e.Kind) < len(kindTexts) {
		text = kindTexts[e.Kind]
	}
	if e.host != "" {
		text = plain.Text(e.host, 100) + ": " + text
	}
	if e.detail != "" {
		text += " (" + e.detail + ")"
	}
	return text
}

// phase is what a call was doing when it failed.
type phase uint8

const (
	waiting phase = iota // for a place
	asking               // connecting, sending, waiting for the headers
	reading              // the body
)

// ours are system errors that come from this machine and not from the gateway.
var ours = []error{
	syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS, syscall.EADDRNOTAVAIL, syscall.ENETUNREACH, syscall.ENETDOWN,
	syscall.EACCES, syscall.EPERM, syscall.EAFNOSUPPORT,
}

// classify says what an error means. The contexts come first: what a call returns after its context ended is only an echo of that.
func classify(parent, call context.Context, err error, at phase) *Error {
	if kind, ended := contextEnded(parent, call, at); ended {
		return &Error{Kind: kind, detail: at.late(kind)}
	}
	var blocked *blockedError
	if errors.As(err, &blocked) {
		return &Error{Kind: Blocked, detail: blocked.Error()}
	}
	for _, errno := range ours {
		if errors.Is(err, errno) {
			return &Error{Kind: Local, detail: errno.Error()}
		}
	}
	var dns *net.DNSError
	if errors.As(err, &dns) {
		return classifyDNS(dns)
	}
	kind, text := kindOf(err, at), err.Error()
	if kind == Protocol || kind == Other {
		text, _, _ = strings.Cut(text, ` "`) // what the gateway sent could be what we had sent
	}
	return &Error{Kind: kind, detail: plain.Text(text, 200)}
}

// contextEnded says what it means that a context ended: the call's own deadline and a plain deadline of the caller are the
// gateway's slowness, a cancellation and a cause of the caller's own are ours.
func contextEnded(parent, call context.Context, at phase) (Kind, bool) {
	switch {
	case parent.Err() == nil && call.Err() == nil:
		return Other, false
	case parent.Err() == nil:
		return Timeout, true
	case at != waiting && context.Cause(parent) == context.DeadlineExceeded:
		return Timeout, true
	}
	return Cancelled, true
}

// late says where a call was when its time was over.
func (p phase) late(k Kind) string {
	switch {
	case k != Timeout:
		return ""
	case p == reading:
		return "the deadline passed while the body came"
	}
	return "the deadline passed"
}

// classifyDNS tells the gateway's names from our own resolver. Go reports the latter as text only.
func classifyDNS(e *net.DNSError) *Error {
	text := strings.ToLower(e.Err)
	switch {
	case strings.Contains(text, "too many open files"):
		return &Error{Kind: Local, detail: "too many open files"}
	case strings.Contains(text, "connection refused"), strings.Contains(text, "unreachable"), strings.Contains(text, "no dns servers"):
		return &Error{Kind: Resolver, detail: plain.Text(e.Err, 200)}
	}
	return &Error{Kind: DNS, detail: plain.Text(e.Err, 100)}
}

func kindOf(err error, at phase) Kind {
	switch {
	case err == errLarge:
		return TooLarge
	case err == errEncoded, errors.Is(err, gzip.ErrHeader), errors.Is(err, gzip.ErrChecksum), isFlate(err):
		return Encoding
	case errors.Is(err, syscall.ECONNREFUSED):
		return Refused
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.EHOSTDOWN):
		return Unreachable
	case isTLS(err):
		return TLS
	case isTimeout(err):
		return Timeout
	case isReset(err):
		if at == reading {
			return CutBody
		}
		return Reset
	case strings.Contains(err.Error(), "response headers exceeded"):
		return TooLarge
	case isProtocol(err):
		return Protocol
	}
	return Other
}

func isTimeout(err error) bool {
	var t net.Error
	return errors.As(err, &t) && t.Timeout()
}

func isReset(err error) bool {
	for _, e := range []error{io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE, syscall.ECONNABORTED} {
		if errors.Is(err, e) {
			return true
		}
	}
	return strings.Contains(err.Error(), "server closed idle connection")
}

func isTLS(err error) bool {
	var (
		verification *tls.CertificateVerificationError
		record       tls.RecordHeaderError
		alert        tls.AlertError
		authority    x509.UnknownAuthorityError
		host         x509.HostnameError
		invalid      x509.CertificateInvalidError
	)
	return errors.As(err, &verification) || errors.As(err, &record) || errors.As(err, &alert) || errors.As(err, &authority) ||
		errors.As(err, &host) || errors.As(err, &invalid) || strings.Contains(err.Error(), "tls: ") ||
		strings.Contains(err.Error(), "gave HTTP response to HTTPS client")
}

func isFlate(err error) bool {
	var corrupt flate.CorruptInputError
	return errors.As(err, &corrupt)
}

// isProtocol knows the errors of net/http about answers that are not HTTP; they have no types.
func isProtocol(err error) bool {
	text := err.Error()
	for _, s := range []string{"malformed", "transport connection broken", "unsupported transfer encoding", "bad Content-Length", "invalid", "too many 1xx", "chunk"} {
		if strings.Contains(text, s) {
			return true
		}
	}
	return false
}
