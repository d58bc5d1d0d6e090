package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

const validity = 10 * 365 * 24 * time.Hour

// writeCredentials writes a cluster authority (ca.crt), the API server's certificate (apiserver.crt, apiserver.key)
// for the given names and addresses, and the key that signs service account tokens (service-account.key, .pub).
func writeCredentials() int {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: credentials FOLDER NAME-OR-ADDRESS...")
		return 2
	}
	if err := writeAll(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "credentials:", err)
		return 1
	}
	return 0
}

func writeAll(folder string, hosts []string) error {
	keys := make([]*ecdsa.PrivateKey, 3)
	for i := range keys {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return err
		}
		keys[i] = key
	}
	authorityKey, serverKey, accountKey := keys[0], keys[1], keys[2]

	authority := template("echorl test cluster", 1)
	authority.IsCA = true
	authority.BasicConstraintsValid = true
	authority.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	authorityDER, err := x509.CreateCertificate(rand.Reader, authority, authority, &authorityKey.PublicKey, authorityKey)
	if err != nil {
		return err
	}
	if authority, err = x509.ParseCertificate(authorityDER); err != nil {
		return err
	}

	server := template("kube-apiserver", 2)
	server.KeyUsage = x509.KeyUsageDigitalSignature
	server.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	for _, host := range hosts {
		if address := net.ParseIP(host); address != nil {
			server.IPAddresses = append(server.IPAddresses, address)
		} else {
			server.DNSNames = append(server.DNSNames, host)
		}
	}
	serverDER, err := x509.CreateCertificate(rand.Reader, server, authority, &serverKey.PublicKey, authorityKey)
	if err != nil {
		return err
	}

	accountPublic, err := x509.MarshalPKIXPublicKey(&accountKey.PublicKey)
	if err != nil {
		return err
	}
	blocks := map[string]*pem.Block{
		"ca.crt":              {Type: "CERTIFICATE", Bytes: authorityDER},
		"apiserver.crt":       {Type: "CERTIFICATE", Bytes: serverDER},
		"service-account.pub": {Type: "PUBLIC KEY", Bytes: accountPublic},
	}
	for name, key := range map[string]*ecdsa.PrivateKey{"apiserver.key": serverKey, "service-account.key": accountKey} {
		der, err := x509.MarshalECPrivateKey(key)
		if err != nil {
			return err
		}
		blocks[name] = &pem.Block{Type: "EC PRIVATE KEY", Bytes: der}
	}
	for name, block := range blocks {
		if err := os.WriteFile(filepath.Join(folder, name), pem.EncodeToMemory(block), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func template(name string, serial int64) *x509.Certificate {
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: big.NewInt(serial),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    now.Add(-time.Minute),
		NotAfter:     now.Add(validity),
	}
}
