set -e
mkdir -p /tmp/p/DEBIAN /tmp/p/usr/bin
printf 'Package: greeter\nVersion: 1.0\nArchitecture: all\nMaintainer: builder <builder@example.org>\nDescription: greets\n' > /tmp/p/DEBIAN/control
printf '#!/bin/sh\necho "good day, $1, from $(cat /etc/greeter.conf)"\n' > /tmp/p/usr/bin/greeter
printf '#!/bin/sh\necho "package $((6 * 7))" > /etc/greeter.conf\n' > /tmp/p/DEBIAN/postinst
chmod 755 /tmp/p/usr/bin/greeter /tmp/p/DEBIAN/postinst
dpkg-deb -b /tmp/p /app/greeter.deb
rm -r /tmp/p
