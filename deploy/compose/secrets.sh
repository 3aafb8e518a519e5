#!/bin/sh
# Makes the secrets that compose.yaml mounts, for this machine only: files that nobody but their owner can read, and an .env that has the containers run as that
# owner. What is there already stays, so that it can be run again; to change one, delete it and the volumes that know it.
#
#   deploy/compose/secrets.sh [FOLDER [ENV-FILE]]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:-$here/secrets}
env_file=${2:-$here/../../.env}
umask 077
mkdir -p "$folder"

random() { od -An -v -tx1 -N24 /dev/urandom | tr -d ' \n'; } # 192 bits, harmless in URLs and configuration files

# keep NAME: what is on the standard input becomes the secret NAME unless there is one. It appears as a whole or not at all.
keep() {
  [ -s "$folder/$1" ] && return 0
  cat > "$folder/.$1" && mv "$folder/.$1" "$folder/$1"
  echo "made $folder/$1"
}

for name in postgres_password grafana_password sim_key; do
  random | keep "$name"
done
# Standard Webhooks writes its keys so.
{ printf 'whsec_'; od -An -v -tx1 -N24 /dev/urandom | tr -d ' \n' | base64 | tr -d '\n'; } | keep sim_webhook

# PostgreSQL: a password for each login, and what each service connects with. psql, which makes the logins, reads the administrator's from a file of its own kind.
for role in migrator relay consumer webhook operator readonly tracker; do
  random | keep "${role}_password"
done
for role in migrator relay consumer webhook operator; do
  printf 'postgres://pollux_%s_login:%s@postgres:5432/payments?sslmode=disable' "$role" "$(cat "$folder/${role}_password")" | keep "${role}_database_url"
done
printf 'postgres:5432:payments:postgres:%s\n' "$(cat "$folder/postgres_password")" | keep pgpass

# NATS: a password for each user, and the accounts with them. These are made anew each time, since they follow the configuration: accounts.conf says who may do what, with the
# passwords as variables, which nats-server does not look for in other files.
fill=
for user in migrator relay consumer operator readonly; do
  random | keep "nats_${user}_password"
  variable=POLLUX_$(echo "$user" | tr '[:lower:]' '[:upper:]')_PASSWORD
  fill="$fill;s/\\\$$variable/\"$(cat "$folder/nats_${user}_password")\"/"
done
sed "${fill#;}" "$here/accounts.conf" > "$folder/.nats_accounts.conf" && mv "$folder/.nats_accounts.conf" "$folder/nats_accounts.conf"

if [ ! -e "$env_file" ]; then
  printf '# Made by make secrets: who the containers run as, so that they can read the secrets.\nPOLLUX_UID=%s\nPOLLUX_GID=%s\n' "$(id -u)" "$(id -g)" > "$env_file"
  echo "made $env_file"
fi
