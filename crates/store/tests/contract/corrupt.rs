//! Rows that cannot be read: they are named, harm no other row, and give way to a write.

use waybill_engine::OperationId;
use waybill_store::{CorruptRow, RowRead};

use super::{Subject, fresh_id, reopen_spoiled, row, rows, write};

fn assert_corrupt(read: &RowRead, id: OperationId) {
    let corrupt = read.as_ref().unwrap_err();
    assert_eq!(corrupt.id, id);
    let text = corrupt.to_string();
    assert!(text.contains(&id.to_string()), "{text}");
    assert!(!corrupt.cause.is_empty(), "{corrupt:?}");
}

fn ids_of(corrupt: &[CorruptRow]) -> Vec<OperationId> {
    corrupt.iter().map(|corrupt| corrupt.id).collect()
}

pub async fn an_unreadable_row_is_named_and_fails_no_other(subject: &impl Subject) {
    let store = subject.open().await;
    let (good, bad, missing) = (fresh_id(), fresh_id(), fresh_id());
    let batch = rows([write(good, 1, true), write(bad, 1, true)]);
    store.write(batch).await.unwrap();
    let store = reopen_spoiled(subject, store, &[bad]).await;

    let asked = vec![bad, good, missing, bad];
    let read = store.get_many(asked).await.unwrap();
    assert_corrupt(&read[0], bad);
    assert_eq!(read[1..3], [Ok(Some(row(good, 1, 1))), Ok(None)]);
    assert_corrupt(&read[3], bad);
}

pub async fn a_state_without_an_immutable_part_is_unreadable_and_fails_no_other(
    subject: &impl Subject,
) {
    let store = subject.open().await;
    let (good, bad) = (fresh_id(), fresh_id());
    let batch = rows([write(good, 1, true), write(bad, 1, false)]);
    store.write(batch).await.unwrap();
    let read = store.get_many(vec![bad, good]).await.unwrap();
    assert_corrupt(&read[0], bad);
    let cause = &read[0].as_ref().unwrap_err().cause;
    assert!(cause.contains("no immutable part"), "{cause}");
    assert_eq!(read[1], Ok(Some(row(good, 1, 1))));
}

pub async fn a_write_replaces_an_unreadable_row_and_the_rest_of_its_batch_is_written(
    subject: &impl Subject,
) {
    let store = subject.open().await;
    let (good, one, two) = (fresh_id(), fresh_id(), fresh_id());
    let batch = rows([good, one, two].map(|id| write(id, 1, true)));
    store.write(batch).await.unwrap();
    let store = reopen_spoiled(subject, store, &[one, two]).await;

    let batch = rows([
        write(one, 2, true),
        write(good, 2, false),
        write(one, 3, false),
        write(two, 2, false),
    ]);
    let written = store.write(batch).await.unwrap();
    for id in ids_of(&written.replaced) {
        assert!([one, two].contains(&id), "{id} was readable");
    }
    let wanted = [row(good, 2, 1), row(one, 3, 2), row(two, 2, 1)].map(|row| Ok(Some(row)));
    let asked = vec![good, one, two];
    assert_eq!(store.get_many(asked.clone()).await.unwrap(), wanted);

    let again = rows([write(one, 4, false)]);
    let written = store.write(again).await.unwrap();
    assert_eq!(written.replaced, [], "it is readable by now");
    let lower = rows([write(two, 1, true)]);
    store.write(lower).await.unwrap();
    let read = store.get_many(asked).await.unwrap();
    assert_eq!(
        read[1..],
        [row(one, 4, 2), row(two, 2, 1)].map(|row| Ok(Some(row)))
    );
}
