#!/bin/bash
# First start of a dsec node on AWS: writes the agent's settings and starts it. Holds no secret: the
# node proves who it is with the role of its instance profile.
set -euo pipefail
umask 022

metadata() {
  local token
  token=$$(curl -sf -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 300' --retry 10 \
    http://169.254.169.254/latest/api/token)
  curl -sf --retry 10 -H "X-aws-ec2-metadata-token: $$token" "http://169.254.169.254/latest/$$1"
}

mkdir -p /etc/dsec /var/lib/dsec
base64 -d > /etc/dsec/ca.crt <<'CA'
$ca
CA
base64 -d > /etc/dsec/agent.json.in <<'SETTINGS'
$settings
SETTINGS
instance=$$(metadata meta-data/instance-id)
address=$$(metadata meta-data/local-ipv4)
sed -e "s/@INSTANCE@/$$instance/" -e "s/@ADDRESS@/$$address/" \
  /etc/dsec/agent.json.in > /etc/dsec/agent.json

cat > /etc/systemd/system/dsec-agent.service <<'UNIT'
[Unit]
Description=dsec node agent
After=network-online.target
Wants=network-online.target
[Service]
ExecStart=/opt/dsec/bin/python -m dsec.agent --config /etc/dsec/agent.json
Restart=always
RestartSec=2
KillMode=process
[Install]
WantedBy=multi-user.target
UNIT

# the agent ends the node in good order; this ends it where there is no agent that could
cat > /etc/systemd/system/dsec-deadline.service <<'UNIT'
[Unit]
Description=End this node after its run-until
[Service]
Type=oneshot
ExecStart=/opt/dsec/bin/python -m dsec.agent.deadline --config /etc/dsec/agent.json
UNIT
cat > /etc/systemd/system/dsec-deadline.timer <<'UNIT'
[Unit]
Description=Look every half minute whether this node must end
[Timer]
OnBootSec=60
OnUnitActiveSec=30
AccuracySec=5
[Install]
WantedBy=timers.target
UNIT
systemctl daemon-reload
systemctl enable --now dsec-deadline.timer dsec-agent.service
