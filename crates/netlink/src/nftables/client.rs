//! The conversation with nf_tables: commit transactions, list objects.

use std::time::Duration;

use super::batch::Batch;
use super::transaction::Transaction;
use crate::error::{Answer, Error, FailedPart, Failure, Rejected, Result};
use crate::socket::{Protocol, Socket, error_answer};
use crate::wire::{Messages, control};

const COMMIT: &str = "an nftables transaction";

/// A buffer larger than this is given back after a commit: large ones are rare, and come in bursts.
const KEEP_BUFFER: usize = 1 << 16;

/// A connection to nf_tables of the network namespace in which it was opened.
#[derive(Debug)]
pub struct Client {
    pub(crate) socket: Socket,
    buffer: Vec<u8>,
}

impl Client {
    /// Opens a connection.
    pub fn open() -> Result<Self> {
        Ok(Self { socket: Socket::open(Protocol::Netfilter)?, buffer: Vec::new() })
    }

    /// The connection's netlink port. Notifications of this connection's own transactions carry it.
    pub fn port(&self) -> u32 {
        self.socket.port()
    }

    /// How long to wait for an answer of the kernel.
    pub fn set_timeout(&self, timeout: Duration) -> Result<()> {
        self.socket.set_timeout(timeout)
    }

    /// Commits a transaction whole; on an error the kernel took nothing of it.
    ///
    /// The exception is [`Error::Overrun`]: then the outcome is unknown.
    pub fn commit(&mut self, transaction: &Transaction) -> Result<()> {
        let batch = Batch::encode_into(std::mem::take(&mut self.buffer), transaction)?;
        let outcome = self.commit_encoded(transaction, &batch);
        let buffer = batch.into_buffer();
        if buffer.capacity() <= KEEP_BUFFER {
            self.buffer = buffer;
        }
        outcome
    }

    /// Commits a transaction that was encoded before; the transaction serves to name what failed.
    pub fn commit_encoded(&mut self, transaction: &Transaction, batch: &Batch) -> Result<()> {
        if batch.message_count() == 0 {
            return Ok(());
        }
        // Each message can fail on its own, and an error answer takes up to a kilobyte of the queue.
        self.socket.grow_receive_buffer(batch.message_count().saturating_mul(1024).clamp(1 << 20, 1 << 27));
        self.socket.send(COMMIT, batch.bytes())?;
        let answers = self.read_answers()?;
        let failures: Vec<_> = answers
            .into_iter()
            .map(|(sequence, answer)| Failure {
                part: failed_part(transaction, batch, sequence, &answer),
                answer,
            })
            .collect();
        if failures.is_empty() { Ok(()) } else { Err(Error::Rejected(Rejected { failures })) }
    }

    /// Reads all answers to a batch and returns the errors among them.
    fn read_answers(&mut self) -> Result<Vec<(u32, Answer)>> {
        let mut errors = Vec::new();
        let mut overrun = false;
        // The kernel works within the send call, so the first answer is there; the rest is read until the
        // queue is empty. A success can stand next to errors: any error means that nothing was taken.
        let mut answered = false;
        loop {
            let datagram = match self.socket.receive(COMMIT, !answered) {
                Ok(Some(datagram)) => datagram,
                Ok(None) => break,
                Err(Error::Overrun { .. }) => {
                    (overrun, answered) = (true, true);
                    continue;
                }
                Err(error) => return Err(error),
            };
            for message in Messages::new(datagram) {
                let message = message.map_err(|source| Error::Answer { request: COMMIT, source })?;
                if message.kind != control::ERROR {
                    continue;
                }
                answered = true;
                let answer =
                    error_answer(&message).map_err(|source| Error::Answer { request: COMMIT, source })?;
                errors.extend(answer.map(|answer| (message.sequence, answer)));
            }
        }
        if overrun && errors.is_empty() { Err(Error::Overrun { request: COMMIT }) } else { Ok(errors) }
    }
}

fn failed_part(transaction: &Transaction, batch: &Batch, sequence: u32, answer: &Answer) -> FailedPart {
    let origin = batch.origin(sequence, answer.offset);
    match origin.and_then(|origin| Some((origin, transaction.operations().get(origin.operation)?))) {
        None => FailedPart::Whole,
        Some((origin, operation)) => FailedPart::Operation {
            index: origin.operation,
            element: origin.element,
            description: operation.describe(origin.element),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nftables::{Family, Table, TableId};
    use nix::errno::Errno;

    /// The kernel answers a fault that it finds at commit with the sequence number of the batch's first message.
    #[test]
    fn a_fault_at_commit_concerns_the_whole_transaction() {
        let mut transaction = Transaction::new();
        transaction.add(Table::new(&TableId::new(Family::Ip, "t")));
        let batch = Batch::encode(&transaction).unwrap();
        let answer = Answer::from_code(-(Errno::EINVAL as i32));
        assert_eq!(failed_part(&transaction, &batch, 1, &answer), FailedPart::Whole);
        assert_eq!(failed_part(&transaction, &batch, 2, &answer).operation(), Some(0));
        assert_eq!(failed_part(&transaction, &batch, 9, &answer), FailedPart::Whole);
    }
}
