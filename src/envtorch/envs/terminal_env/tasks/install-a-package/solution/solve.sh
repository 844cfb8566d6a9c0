#!/bin/bash
set -e
dpkg -i /app/greeter.deb
greeter Ada > /app/answer.txt
